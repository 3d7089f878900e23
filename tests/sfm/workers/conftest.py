from sfm.dense.conftest import room, true_folder

__all__ = ["room", "true_folder"]
