"""The courtyard: three old houses around a square with a fountain, and what people left there."""

from __future__ import annotations

import bpy

from courtyard.houses import back_house, left_house, right_house, skyline
from courtyard.lamps import Courtyard
from courtyard.plants import grow_plants
from courtyard.shapes import place
from courtyard.things import fountain, ground, leave_things, sculpture, statue


def build() -> Courtyard:
    """Fill the empty scene."""
    yard = Courtyard()
    bpy.ops.wm.read_factory_settings(use_empty=True)
    ground(yard)
    back_house(yard, place(-8.5, 6))
    left_house(yard, place(-8.5, -7, turn=90))
    right_house(yard, place(8.5, 6, turn=-90))
    skyline(yard)
    fountain(place(0.3, 1.6))
    sculpture(place(-2.9, 2.6))
    statue(yard, place(3.1, 4.9, turn=185), 1.0)
    leave_things(yard)
    grow_plants(yard)
    return yard
