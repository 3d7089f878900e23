"""The materials of the rendered courtyard: procedural Cycles shaders in world coordinates.

World coordinates (metres) make every wall unlike every other one even where two share a material, and bump
instead of displacement keeps the geometry, and so the true depth, exact. Needs Blender's Python module
(`pip install bpy`).
"""

from __future__ import annotations

from typing import Any

import bpy
import numpy as np

from courtyard.shader import Color, Shader, Socket


def _mean(colors: list[Color], dirt: float) -> Color:
    """The average of colours, dimmed by the grime on top."""
    red, green, blue = (dirt * sum(channel) / len(colors) for channel in zip(*colors, strict=True))
    return red, green, blue


def _weathering(s: Shader, color: Socket, seed: float, strength: float = 1.0) -> Socket:
    """Rain streaks, blotches and damp feet, as every old wall has them."""
    wall = s.wall_coordinates(seed + 31.0)
    streaks = s.ramp(s.noise(s.scaled(wall, (5.0, 0.35, 1)), 1.0, 6), 0.47, 0.70, 0, 0.7 * strength)
    color = s.mix(streaks, color, (0.09, 0.08, 0.065), "MIX")
    blotch = s.ramp(s.noise(wall, 0.55, 8, 0.65), 0.42, 0.66, 0, 0.75 * strength)
    color = s.mix(blotch, color, (0.42, 0.37, 0.30), "MULTIPLY")
    height = s.add("ShaderNodeSeparateXYZ", {0: s.position()}).outputs[2]
    ragged = s.math("ADD", height, s.ramp(s.noise(wall, 1.7, 6), 0, 1, -0.9, 0.9))
    damp = s.ramp(ragged, 0.9, 0.0, 0, 0.7 * strength)
    return s.mix(damp, color, (0.22, 0.23, 0.17), "MULTIPLY")


def _bricks(s: Shader, seed: float, a: Color, b: Color, mortar: Color) -> tuple[Socket, Socket]:
    """Colour and height of running-bond bricks."""
    wall = s.wall_coordinates(seed, 0.02)
    inputs = {
        "Vector": wall,
        "Color1": a,
        "Color2": b,
        "Mortar": mortar,
        "Scale": 1.0,
        "Mortar Size": 0.007,
        "Mortar Smooth": 0.3,
        "Bias": -0.1,
        "Brick Width": 0.25,
        "Row Height": 0.078,
    }
    tex = s.add("ShaderNodeTexBrick", inputs)
    grain = s.ramp(s.noise(wall, 28, 6, 0.7), 0.25, 0.75, 0.55, 1.3)
    tone = s.add("ShaderNodeCombineColor", {0: grain, 1: grain, 2: grain}).outputs[0]
    color = s.mix(0.9, tex.outputs[0], tone, "MULTIPLY")
    rough = s.math("MULTIPLY", s.noise(wall, 40, 5), 0.008)
    return color, s.math("SUBTRACT", rough, s.math("MULTIPLY", tex.outputs[1], 0.012))


def brick_wall(seed: float, a: Color, b: Color, whitewash: float = 0.0) -> bpy.types.Material:
    """Bricks, with the remains of a coat of whitewash where `whitewash` > 0."""
    s = Shader("brick")
    color, height = _bricks(s, seed, a, b, (0.36, 0.33, 0.29))
    if whitewash:
        wall = s.wall_coordinates(seed + 7)
        mask = s.ramp(s.noise(wall, 0.9, 12, 0.72), 0.60 - whitewash, 0.66 - whitewash)
        color = s.mix(s.math("MULTIPLY", mask, 0.85), color, (0.62, 0.58, 0.50))
    return s.finish(_weathering(s, color, seed), 0.9, height, 0.9, _mean([a, b], 0.65))


def plaster_wall(seed: float, tint: Color, faded: Color, reveal: float) -> bpy.types.Material:
    """Old plaster: two coats, cracks, and patches where it fell off the bricks (`reveal` in 0..0.2)."""
    s = Shader("plaster")
    wall = s.wall_coordinates(seed)
    coat = s.ramp(s.noise(wall, 0.8, 10, 0.65), 0.35, 0.68)
    color = s.mix(coat, tint, faded)
    older = s.ramp(s.noise(s.scaled(wall, (1, 1, 1), (9, 4, 0)), 1.1, 12, 0.75), 0.60, 0.625)
    color = s.mix(s.math("MULTIPLY", older, 0.8), color, (0.66, 0.62, 0.55))
    bent = s.wall_coordinates(seed + 3, 0.25)
    cells = s.add("ShaderNodeTexVoronoi", {"Vector": bent, "Scale": 0.8}, feature="DISTANCE_TO_EDGE")
    crack_zone = s.ramp(s.noise(wall, 0.9, 2), 0.5, 0.6)
    crack = s.math("MULTIPLY", s.ramp(cells.outputs["Distance"], 0.010, 0.002), crack_zone)
    color = s.mix(s.math("MULTIPLY", crack, 0.75), color, (0.07, 0.06, 0.05))
    grain = s.noise(wall, 35, 6, 0.7)
    color = s.mix(s.ramp(grain, 0.3, 0.7, 0, 0.22), color, (0.2, 0.17, 0.13), "MULTIPLY")
    brick, brick_height = _bricks(s, seed, (0.33, 0.13, 0.08), (0.46, 0.22, 0.12), (0.4, 0.36, 0.31))
    fallen = s.noise(wall, 0.75, 12, 0.68)
    edge = 0.66 - reveal
    mask = s.ramp(fallen, edge, edge + 0.012)
    rim = s.ramp(fallen, edge - 0.02, edge, 0, 0.45)
    color = s.mix(rim, color, (0.5, 0.46, 0.40))
    color = s.mix(mask, color, brick)
    smooth = s.math("ADD", s.math("MULTIPLY", grain, 0.006), s.math("MULTIPLY", crack, -0.01))
    height = s.math("SUBTRACT", smooth, s.math("MULTIPLY", mask, 0.025))
    height = s.math("ADD", height, s.math("MULTIPLY", mask, brick_height))
    return s.finish(_weathering(s, color, seed), 0.92, height, 0.9, _mean([tint, faded], 0.65))


def rubble_wall(seed: float, stones: list[Color], size: float = 0.38) -> bpy.types.Material:
    """Irregular field stones in mortar."""
    s = Shader("rubble")
    wall = s.scaled(s.wall_coordinates(seed, 0.10), (1 / size, 1.55 / size, 1))
    edge = s.add(
        "ShaderNodeTexVoronoi",
        {"Vector": wall, "Scale": 1.0},
        feature="DISTANCE_TO_EDGE",
        voronoi_dimensions="2D",
    ).outputs["Distance"]
    cell = s.add("ShaderNodeTexVoronoi", {"Vector": wall, "Scale": 1.0}, voronoi_dimensions="2D")
    pick = s.add("ShaderNodeSeparateColor", {0: cell.outputs["Color"]})
    fine = s.wall_coordinates(seed + 5)
    grain = s.noise(fine, 14, 8, 0.7)
    color = s.mix(
        s.ramp(grain, 0.3, 0.75, 0, 0.75), s.palette(pick.outputs[0], stones), (0.28, 0.26, 0.22), "MULTIPLY"
    )
    tone = s.ramp(pick.outputs[1], 0, 1, 0.65, 1.25)
    color = s.mix(
        1.0, color, s.add("ShaderNodeCombineColor", {0: tone, 1: tone, 2: tone}).outputs[0], "MULTIPLY"
    )
    joint = s.ramp(edge, 0.07, 0.03)
    color = s.mix(joint, color, (0.42, 0.38, 0.31))
    dome = s.math("MULTIPLY", s.ramp(edge, 0.02, 0.22), 0.04)
    height = s.math("ADD", dome, s.math("MULTIPLY", grain, 0.03))
    return s.finish(_weathering(s, color, seed, 0.8), 0.9, height, 0.9, _mean(stones, 0.6))


def ashlar(seed: float, a: Color, b: Color, width: float = 0.62, row: float = 0.34) -> bpy.types.Material:
    """Cut stone blocks."""
    s = Shader("ashlar")
    wall = s.wall_coordinates(seed, 0.015)
    inputs = {
        "Vector": wall,
        "Color1": a,
        "Color2": b,
        "Mortar": (0.16, 0.14, 0.12),
        "Scale": 1.0,
        "Mortar Size": 0.008,
        "Mortar Smooth": 0.4,
        "Brick Width": width,
        "Row Height": row,
    }
    tex = s.add("ShaderNodeTexBrick", inputs, squash=1.4, squash_frequency=3)
    pits = s.noise(wall, 16, 9, 0.72)
    color = s.mix(s.ramp(pits, 0.35, 0.7, 0, 0.7), tex.outputs[0], (0.30, 0.26, 0.20), "MULTIPLY")
    lichen = s.ramp(s.noise(wall, 3.1, 10, 0.75), 0.62, 0.66, 0, 0.5)
    color = s.mix(lichen, color, (0.40, 0.36, 0.16))
    joint = s.math("MULTIPLY", tex.outputs[1], 0.02)
    height = s.math("SUBTRACT", s.math("MULTIPLY", pits, 0.025), joint)
    return s.finish(_weathering(s, color, seed, 0.9), 0.88, height, 0.8, _mean([a, b], 0.55))


def paving() -> bpy.types.Material:
    """Uneven setts with sandy joints, moss and wear; the rings of slabs around the fountain are geometry."""
    s = Shader("paving")
    p = s.position()
    wobble = s.add("ShaderNodeTexNoise", {"Vector": p, "Scale": 0.6, "Detail": 2.0}).outputs["Color"]
    bent = s.add("ShaderNodeVectorMath", {0: p, 1: s.scaled(wobble, (0.5, 0.5, 0))}, operation="ADD").outputs[
        0
    ]
    cells = {"Vector": bent, "Scale": 6.3, "Randomness": 0.6}
    edge = s.add("ShaderNodeTexVoronoi", cells, feature="DISTANCE_TO_EDGE", voronoi_dimensions="2D").outputs[
        "Distance"
    ]
    cell = s.add("ShaderNodeTexVoronoi", cells, voronoi_dimensions="2D").outputs["Color"]
    pick = s.add("ShaderNodeSeparateColor", {0: cell})
    stones = [
        (0.13, 0.125, 0.12), (0.27, 0.25, 0.22), (0.20, 0.17, 0.15), (0.36, 0.33, 0.29), (0.17, 0.18, 0.19),
    ]  # fmt: skip
    color = s.palette(pick.outputs[0], stones)
    grain = s.noise(p, 22, 8, 0.7)
    color = s.mix(s.ramp(grain, 0.3, 0.7, 0, 0.8), color, (0.35, 0.33, 0.30), "MULTIPLY")
    moss = s.ramp(s.noise(p, 0.5, 8, 0.7), 0.45, 0.6)
    joint_color = s.mix(moss, (0.30, 0.25, 0.18), (0.10, 0.13, 0.045))
    joint = s.ramp(edge, 0.075, 0.03)
    color = s.mix(joint, color, joint_color)
    dirt = s.ramp(s.noise(p, 0.33, 9, 0.68), 0.48, 0.66, 0, 0.75)
    color = s.mix(dirt, color, (0.30, 0.25, 0.19))
    wet = s.ramp(s.noise(s.scaled(p, (1, 1, 1), (40, 7, 0)), 0.42, 5, 0.6), 0.58, 0.70)
    color = s.mix(s.math("MULTIPLY", wet, 0.55), color, (0.3, 0.3, 0.3), "MULTIPLY")
    dome = s.math("MULTIPLY", s.ramp(edge, 0.02, 0.25), 0.035)
    height = s.math("ADD", dome, s.math("MULTIPLY", grain, 0.012))
    return s.finish(color, s.ramp(wet, 0, 1, 0.85, 0.45), height, 0.9, _mean(stones, 0.75))


def wood(color: Color, axis: int, paint: Color | None = None, worn: float = 0.5) -> bpy.types.Material:
    """Boards with the grain along `axis` of the object; `paint` flakes off by `worn`."""
    s = Shader("wood")
    stretch = [14.0, 14.0, 14.0]
    stretch[axis] = 0.9
    shift = s.math("MULTIPLY", s.per_object(), 57.0)
    offset = s.add("ShaderNodeCombineXYZ", {0: shift, 1: shift, 2: shift}).outputs[0]
    p = s.add("ShaderNodeVectorMath", {0: s.local(tuple(stretch)), 1: offset}, operation="ADD").outputs[0]
    grain = s.noise(p, 1.6, 9, 0.7)
    dark = tuple(0.35 * c for c in color)
    base = s.mix(s.ramp(grain, 0.36, 0.64), dark, color)
    tone = s.ramp(s.per_object(), 0, 1, 0.7, 1.25)
    base = s.mix(
        1.0, base, s.add("ShaderNodeCombineColor", {0: tone, 1: tone, 2: tone}).outputs[0], "MULTIPLY"
    )
    if paint is not None:
        flakes = s.noise(s.position(), 6, 10, 0.75)
        kept = s.ramp(s.math("ADD", flakes, s.ramp(grain, 0.3, 0.7, -0.12, 0.12)), worn, worn - 0.03)
        base = s.mix(
            kept, base, s.mix(s.ramp(flakes, 0.3, 0.6, 0, 0.5), paint, tuple(0.5 * c for c in paint))
        )
    dirt = s.ramp(s.noise(s.position(), 2.3, 7), 0.45, 0.7, 0, 0.6)
    base = s.mix(dirt, base, (0.35, 0.31, 0.26), "MULTIPLY")
    return s.finish(base, 0.75, s.math("MULTIPLY", grain, 0.006), 0.6, _mean([paint or color], 0.6))


def stone(seed: float, color: Color, mottled: float = 0.6, roughness: float = 0.85) -> bpy.types.Material:
    """Carved weathered stone without joints: basins, plinths, statues, sills."""
    s = Shader("stone")
    p = s.scaled(s.position(), (1, 1, 1), (seed, seed * 0.7, seed * 1.3))
    pits = s.noise(p, 11, 10, 0.72)
    base = s.mix(s.ramp(pits, 0.35, 0.7, 0, mottled), color, (0.25, 0.23, 0.19), "MULTIPLY")
    soot = s.ramp(s.noise(s.scaled(p, (3, 3, 0.5)), 1.0, 8, 0.7), 0.42, 0.66, 0, mottled)
    base = s.mix(soot, base, (0.10, 0.095, 0.085))
    lichen = s.ramp(s.noise(p, 5, 10, 0.75), 0.57, 0.61, 0, 0.8 * mottled)
    base = s.mix(lichen, base, (0.30, 0.27, 0.12))
    stain = s.ramp(s.noise(p, 1.9, 8, 0.7), 0.45, 0.62, 0, 0.6)
    base = s.mix(stain, base, (0.36, 0.33, 0.24), "MULTIPLY")
    return s.finish(base, roughness, s.math("MULTIPLY", pits, 0.02), 0.7, _mean([color], 0.55))


def polished(color: Color, veins: Color, roughness: float) -> bpy.types.Material:
    """The smooth sculpture: marble with faint veins, nothing else to hold on to."""
    s = Shader("polished")
    warped = s.add(
        "ShaderNodeTexNoise", {"Vector": s.position(), "Scale": 1.3, "Detail": 8.0, "Distortion": 1.4}
    )
    vein = s.ramp(s.math("ABSOLUTE", s.math("SUBTRACT", warped.outputs[0], 0.5)), 0.018, 0.0, 0, 0.35)
    return s.finish(s.mix(vein, color, veins), roughness, **{"Coat Weight": 0.15, "Coat Roughness": 0.15})


def metal(color: Color, rust: float) -> bpy.types.Material:
    """Iron, more or less rusty."""
    s = Shader("metal")
    n = s.noise(s.position(), 9, 9, 0.75)
    mask = s.ramp(n, 0.62 - rust, 0.70 - rust)
    base = s.mix(mask, color, s.mix(s.noise(s.position(), 40, 4), (0.24, 0.09, 0.035), (0.11, 0.045, 0.02)))
    return s.finish(
        base,
        s.ramp(mask, 0, 1, 0.4, 0.95),
        s.math("MULTIPLY", n, 0.01),
        0.4,
        _mean([color], 1.0),
        Metallic=0.55,
    )


def leaves(colors: list[Color]) -> bpy.types.Material:
    """One tone per leaf."""
    s = Shader("leaves")
    return s.finish(
        s.palette(s.island(), colors), 0.55, average=_mean(colors, 1.0), **{"Specular IOR Level": 0.3}
    )


def roof_tiles(seed: float) -> bpy.types.Material:
    """Clay tiles, one tone per tile, from the tile numbers in the UV map."""
    s = Shader("tiles")
    uv = s.add("ShaderNodeTexCoord").outputs["UV"]
    cell = s.add("ShaderNodeVectorMath", {0: uv}, operation="FLOOR").outputs[0]
    tone = s.add("ShaderNodeTexWhiteNoise", {"Vector": s.scaled(cell, (1, 1, 1), (seed, 0, 0))}).outputs[
        "Value"
    ]
    colors = [
        (0.36, 0.14, 0.07), (0.46, 0.21, 0.11), (0.29, 0.13, 0.08), (0.52, 0.30, 0.18), (0.24, 0.15, 0.11),
    ]  # fmt: skip
    color = s.palette(tone, colors)
    moss = s.ramp(s.noise(s.position(), 1.4, 9, 0.72), 0.50, 0.62, 0, 0.75)
    color = s.mix(moss, color, (0.13, 0.13, 0.07))
    return s.finish(
        color, 0.9, s.math("MULTIPLY", s.noise(s.position(), 30, 5), 0.01), 0.5, _mean(colors, 0.7)
    )


def cloth(a: Color, b: Color | None, stripes: float = 7.0) -> bpy.types.Material:
    """Woven cloth, striped along the UV's x where `b` is given."""
    s = Shader("cloth")
    uv = s.add("ShaderNodeTexCoord").outputs["UV"]
    color: Any = (*a, 1.0)
    if b is not None:
        u = s.add("ShaderNodeSeparateXYZ", {0: uv}).outputs[0]
        band = s.math("GREATER_THAN", s.math("FRACT", s.math("MULTIPLY", u, stripes)), 0.5)
        color = s.mix(band, a, b)
    fade = s.ramp(s.noise(s.position(), 3, 8, 0.7), 0.35, 0.7, 0, 0.6)
    return s.finish(s.mix(fade, color, (0.55, 0.5, 0.42), "MULTIPLY"), 0.9, average=_mean([a, b or a], 0.8))


def glass(lit: Color | None) -> tuple[bpy.types.Material, Any]:
    """A window pane with the hint of a room behind; returns the emission socket to switch on at night."""
    s = Shader("glass")
    room = s.noise(s.scaled(s.position(), (1.4, 1.4, 0.8)), 1.2, 3)
    color = s.mix(s.ramp(room, 0.35, 0.65), (0.012, 0.014, 0.017), (0.10, 0.095, 0.085))
    glow = s.mix(s.ramp(room, 0.4, 0.62), lit or (0, 0, 0), tuple(0.35 * c for c in (lit or (0, 0, 0))))
    material = s.finish(color, 0.12, **{"Emission Color": glow, "Emission Strength": 0.0})
    surface = next(n for n in s.tree.nodes if n.type == "BSDF_PRINCIPLED")
    return material, surface.inputs["Emission Strength"]


def water() -> bpy.types.Material:
    """The fountain's water: dark, rippled."""
    s = Shader("water")
    ripples = s.math("MULTIPLY", s.noise(s.position(), 9, 3), 0.03)
    return s.finish((0.03, 0.06, 0.05), 0.08, ripples, 0.5)


def picture(pixels: np.ndarray, name: str, wear: float = 0.5) -> bpy.types.Material:
    """A printed or painted picture (H, W, 4) in 0..1, sRGB values, on the UV map; alpha cuts it out."""
    height, width = pixels.shape[:2]
    image = bpy.data.images.new(name, width, height, alpha=True)
    image.pixels.foreach_set(np.ascontiguousarray(pixels[::-1], dtype=np.float32).ravel())
    image.pack()
    s = Shader(name)
    tex = s.add("ShaderNodeTexImage", {"Vector": s.add("ShaderNodeTexCoord").outputs["UV"]}, image=image)
    stain = s.ramp(s.noise(s.position(), 3.5, 9, 0.72), 0.45, 0.68, 0, wear)
    color = s.mix(stain, tex.outputs["Color"], (0.42, 0.36, 0.27), "MULTIPLY")
    torn = s.ramp(s.noise(s.scaled(s.position(), (1, 1, 1), (3, 8, 5)), 2.6, 12, 0.75), 0.64, 0.65)
    alpha = s.math("MULTIPLY", tex.outputs["Alpha"], s.math("SUBTRACT", 1.0, torn))
    return s.finish(color, 0.8, **{"Alpha": alpha})


def plain(color: Color, roughness: float = 0.7) -> bpy.types.Material:
    return Shader("plain").finish((*color, 1.0), roughness)


def glowing(color: Color) -> tuple[bpy.types.Material, Any]:
    """Milky lamp glass; returns the emission socket to switch on at night."""
    s = Shader("lamp")
    inputs = {"Emission Color": (*color, 1.0), "Emission Strength": 0.0}
    material = s.finish((0.75, 0.72, 0.62, 1.0), 0.3, **inputs)
    surface = next(n for n in s.tree.nodes if n.type == "BSDF_PRINCIPLED")
    return material, surface.inputs["Emission Strength"]
