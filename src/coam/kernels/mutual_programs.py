"""The kernels of `mutual_triton`: search, columns, choice. Import only where Triton is installed.

A program of the search keeps one block of rows and streams tiles of columns past it. The similarity of a tile
lives in registers only. What is written per program: the best value and column of each row, and per tile the
largest value of each column.

Finding the place of a maximum costs more than finding its value, and the matrix units leave little time per
entry. So columns keep their value and the block of rows it came from; whether a matched row is the FIRST row
of its block with that value (ties!) is settled afterwards by a small kernel, which compares a block of rows
with only those columns that the rows of the block chose.
"""

import triton
import triton.language as tl


# One compilation serves all sizes: by default Triton would compile again for sizes that are multiples of 16.
@triton.jit(do_not_specialize=["rows", "columns", "tiles_per_split", "first_block"])  # type: ignore[untyped-decorator]
def search_kernel(  # type: ignore[no-untyped-def]
    rows_ptr,
    columns_ptr,
    row_value_ptr,
    row_index_ptr,
    row_sum_ptr,
    column_value_ptr,
    column_sum_ptr,
    rows,
    columns,
    tiles_per_split,
    column_stride,
    first_block,
    scale,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WITH_SUMS: tl.constexpr,
    EXACT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block = tl.program_id(0)
    split = tl.program_id(1)
    row = (first_block + block) * BLOCK + tl.arange(0, BLOCK)
    feature = tl.arange(0, PADDED_SIZE)
    # Beyond the end the last row and column are repeated: a repeated maximum is still the maximum, and of
    # equal places the smallest wins, so entries need no mask.
    known_row = tl.minimum(row, rows - 1).to(tl.int64)
    query = tl.load(
        rows_ptr + known_row[None, :] * SIZE + feature[:, None], mask=feature[:, None] < SIZE, other=0.0
    )
    # Tiles are held transposed, (columns, rows). A thread of the matrix unit holds long stretches along the
    # second axis, so the reduction that every tile needs, over the rows, stays almost within a thread; that
    # over the columns is done entry by entry, and across threads only once, after the last tile.
    best = tl.full([TILE, BLOCK], float("-inf"), dtype=tl.float32)
    best_tile = tl.zeros([TILE, BLOCK], dtype=tl.int32)
    sums = tl.zeros([TILE, BLOCK], dtype=tl.float32)
    first_tile = split * tiles_per_split
    last_tile = tl.minimum(first_tile + tiles_per_split, tl.cdiv(columns, TILE))
    column_offset = block.to(tl.int64) * column_stride
    for tile in range(first_tile, last_tile):
        column = tile * TILE + tl.arange(0, TILE)
        known_column = tl.minimum(column, columns - 1).to(tl.int64)
        other = tl.load(
            columns_ptr + known_column[:, None] * SIZE + feature[None, :],
            mask=feature[None, :] < SIZE,
            other=0.0,
        )
        similarity = tl.dot(other, query, input_precision=PRECISION)
        better = similarity > best
        best_tile = tl.where(better, tile, best_tile)
        best = tl.where(better, similarity, best)
        tl.store(column_value_ptr + column_offset + column, tl.max(similarity, axis=1), mask=column < columns)
        if WITH_SUMS:
            exponential = tl.exp2(similarity * scale)
            if not EXACT:  # a repeated row or column must not be summed again
                exists = (row[None, :] < rows) & (column[:, None] < columns)
                exponential = tl.where(exists, exponential, 0.0)
            sums += exponential
            column_sum = tl.sum(exponential, axis=1)
            tl.store(column_sum_ptr + column_offset + column, column_sum, mask=column < columns)
    value = tl.max(best, axis=0)
    place = best_tile * TILE + tl.arange(0, TILE)[:, None]
    index = tl.min(tl.where(best == value[None, :], place, 2147483647), axis=0)
    row_offset = split.to(tl.int64) * rows
    tl.store(row_value_ptr + row_offset + row, value, mask=row < rows)
    tl.store(row_index_ptr + row_offset + row, index, mask=row < rows)
    if WITH_SUMS:
        tl.store(row_sum_ptr + row_offset + row, tl.sum(sums, axis=0), mask=row < rows)


@triton.jit(do_not_specialize=["blocks", "columns", "first_block"])  # type: ignore[untyped-decorator]
def columns_kernel(  # type: ignore[no-untyped-def]
    value_ptr,
    sum_ptr,
    best_ptr,
    best_block_ptr,
    total_ptr,
    blocks,
    columns,
    column_stride,
    first_block,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
    WITH_SUMS: tl.constexpr,
):
    """Of each column the largest value over the blocks of a slab and those before, and its first block."""
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    known = column < columns
    part = tl.arange(0, GROUP)
    best = tl.full([GROUP, TILE], float("-inf"), dtype=tl.float32)
    best_block = tl.zeros([GROUP, TILE], dtype=tl.int32)
    total = tl.zeros([GROUP, TILE], dtype=tl.float32)
    for start in range(0, blocks, GROUP):
        block = start + part
        mask = (block < blocks)[:, None] & known[None, :]
        place = block.to(tl.int64)[:, None] * column_stride + column[None, :]
        value = tl.load(value_ptr + place, mask=mask, other=float("-inf"))
        better = value > best
        best_block = tl.where(better, block[:, None], best_block)
        best = tl.where(better, value, best)
        if WITH_SUMS:
            total += tl.load(sum_ptr + place, mask=mask, other=0.0)
    highest = tl.max(best, axis=0)
    first = tl.min(tl.where(best == highest[None, :], best_block, 2147483647), axis=0) + first_block
    sums = tl.sum(total, axis=0)
    if first_block > 0:
        before = tl.load(best_ptr + column, mask=known, other=0.0)
        first = tl.where(highest > before, first, tl.load(best_block_ptr + column, mask=known, other=0))
        highest = tl.maximum(highest, before)
        if WITH_SUMS:
            sums += tl.load(total_ptr + column, mask=known, other=0.0)
    tl.store(best_ptr + column, highest, mask=known)
    tl.store(best_block_ptr + column, first, mask=known)
    if WITH_SUMS:
        tl.store(total_ptr + column, sums, mask=known)


@triton.jit(do_not_specialize=["rows", "splits"])  # type: ignore[untyped-decorator]
def choice_kernel(  # type: ignore[no-untyped-def]
    rows_ptr,
    columns_ptr,
    row_value_ptr,
    row_index_ptr,
    row_sum_ptr,
    column_value_ptr,
    column_block_ptr,
    column_sum_ptr,
    value_ptr,
    index_ptr,
    is_mutual_ptr,
    probability_ptr,
    rows,
    splits,
    scale,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    WITH_SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What each row chose over all splits of the columns, and whether the column chose it as well.

    That is so if the column's largest value is the row's, if it came from the row's block, and if no earlier
    row of the block is equally similar.
    """
    place = tl.arange(0, BLOCK)
    row = tl.program_id(0) * BLOCK + place
    known_row = tl.minimum(row, rows - 1)
    value = tl.load(row_value_ptr + known_row)
    chosen = tl.load(row_index_ptr + known_row)
    for split in range(1, splits):
        offset = split * rows
        other_value = tl.load(row_value_ptr + offset + known_row)
        other_index = tl.load(row_index_ptr + offset + known_row)
        chosen = tl.where(other_value > value, other_index, chosen)
        value = tl.maximum(value, other_value)
    feature = tl.arange(0, PADDED_SIZE)
    query = tl.load(
        rows_ptr + known_row.to(tl.int64)[:, None] * SIZE + feature[None, :],
        mask=feature[None, :] < SIZE,
        other=0.0,
    )
    other = tl.load(
        columns_ptr + chosen.to(tl.int64)[None, :] * SIZE + feature[:, None],
        mask=feature[:, None] < SIZE,
        other=0.0,
    )
    similarity = tl.dot(query, other, input_precision=PRECISION)
    own = tl.sum(tl.where(place[:, None] == place[None, :], similarity, 0.0), axis=0)
    earlier_equal = (similarity == own[None, :]) & (place[:, None] < place[None, :])
    is_first = tl.max(earlier_equal.to(tl.int32), axis=0) == 0
    is_mutual = is_first & (value == tl.load(column_value_ptr + chosen))
    is_mutual = is_mutual & (tl.load(column_block_ptr + chosen) == tl.program_id(0))
    known = row < rows
    tl.store(value_ptr + row, value, mask=known)
    tl.store(index_ptr + row, chosen.to(tl.int64), mask=known)
    tl.store(is_mutual_ptr + row, is_mutual.to(tl.int8), mask=known)
    if WITH_SUMS:
        row_sum = tl.zeros([BLOCK], dtype=tl.float32)
        for split in range(splits):
            row_sum += tl.load(row_sum_ptr + split * rows + known_row)
        share = tl.exp2(value * scale)
        probability = (share / row_sum) * (share / tl.load(column_sum_ptr + chosen))
        tl.store(probability_ptr + row, probability, mask=known)
