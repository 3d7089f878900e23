"""Light and sky by day and by night."""

from __future__ import annotations

import math

import bpy
from mathutils import Vector

from courtyard.lamps import Courtyard


def light(yard: Courtyard) -> dict[bool, list[bpy.types.Object]]:
    """The sun for the day; lanterns and the moon for the night. Keyed by `night`."""
    sun = bpy.data.lights.new("sun", "SUN")
    sun.energy, sun.angle, sun.color = 4.0, math.radians(1.2), (1.0, 0.90, 0.76)
    moon = bpy.data.lights.new("moon", "SUN")
    moon.energy, moon.angle, moon.color = 0.035, math.radians(2), (0.55, 0.68, 1.0)
    objects: dict[bool, list[bpy.types.Object]] = {False: [], True: []}
    for lamp, night, direction in ((sun, False, (0.50, 0.62, -0.72)), (moon, True, (-0.45, 0.3, -0.8))):
        thing = bpy.data.objects.new(lamp.name, lamp)
        thing.rotation_euler = Vector(direction).to_track_quat("-Z", "Y").to_euler()
        objects[night].append(thing)
    for i, spot in enumerate(yard.lamps):
        if i in (3, 8):
            continue  # every town has some that do not burn
        lamp = bpy.data.lights.new("lantern", "POINT")
        lamp.energy, lamp.shadow_soft_size, lamp.color = 42, 0.13, (1.0, 0.60, 0.27)
        thing = bpy.data.objects.new("lantern", lamp)
        thing.location = spot
        objects[True].append(thing)
    for spot in ((-5.0, -9.0, 4.5), (5.5, -9.0, 4.5)):  # street lamps behind the walker
        lamp = bpy.data.lights.new("street", "POINT")
        lamp.energy, lamp.shadow_soft_size, lamp.color = 170, 0.3, (1.0, 0.74, 0.46)
        thing = bpy.data.objects.new("street", lamp)
        thing.location = spot
        objects[True].append(thing)
    for group in objects.values():
        for thing in group:
            bpy.context.scene.collection.objects.link(thing)
    return objects


def sky(night: bool) -> bpy.types.World:
    """A blue gradient with clouds; deep blue with a glow at the horizon by night."""
    world = bpy.data.worlds.new("night" if night else "day")
    world.use_nodes = True
    tree = world.node_tree
    tree.nodes.clear()
    new, link = tree.nodes.new, tree.links.new
    direction = new("ShaderNodeTexCoord").outputs["Generated"]
    split = new("ShaderNodeSeparateXYZ")
    link(direction, split.inputs[0])
    ramp = new("ShaderNodeValToRGB")
    link(split.outputs[2], ramp.inputs[0])
    low, high = (
        ((0.020, 0.026, 0.055), (0.004, 0.007, 0.022)) if night else ((0.55, 0.68, 0.86), (0.13, 0.30, 0.66))
    )
    ramp.color_ramp.elements[0].color, ramp.color_ramp.elements[1].color = (*low, 1), (*high, 1)
    ramp.color_ramp.elements[1].position = 0.7
    flatten = new("ShaderNodeVectorMath")
    flatten.operation = "MULTIPLY"
    flatten.inputs[1].default_value = (1.0, 1.0, 2.8)
    link(direction, flatten.inputs[0])
    noise = new("ShaderNodeTexNoise")
    for key, value in {"Scale": 2.1, "Detail": 9.0, "Roughness": 0.58, "Distortion": 0.3}.items():
        noise.inputs[key].default_value = value
    link(flatten.outputs[0], noise.inputs["Vector"])
    cover = new("ShaderNodeMapRange")
    cover.inputs[1].default_value, cover.inputs[2].default_value = 0.50, 0.68
    cover.inputs[4].default_value = 0.5 if night else 0.92
    link(noise.outputs[0], cover.inputs[0])
    mix = new("ShaderNodeMixRGB")
    mix.inputs[2].default_value = (0.022, 0.023, 0.032, 1) if night else (1.0, 0.98, 0.95, 1)
    link(cover.outputs[0], mix.inputs[0])
    link(ramp.outputs[0], mix.inputs[1])
    background = new("ShaderNodeBackground")
    background.inputs[1].default_value = 0.9
    link(mix.outputs[0], background.inputs[0])
    link(background.outputs[0], new("ShaderNodeOutputWorld").inputs[0])
    return world


def switch(
    yard: Courtyard,
    lights: dict[bool, list[bpy.types.Object]],
    skies: dict[bool, bpy.types.World],
    night: bool,
) -> None:
    """Day or night."""
    scene = bpy.context.scene
    scene.world = skies[night]
    scene.view_settings.exposure = 2.25 if night else 0.2
    for when, group in lights.items():
        for thing in group:
            thing.hide_render = when != night
    for socket in yard.panes:
        socket.default_value = 0.35 if night else 0.0
    for socket in yard.lamp_glass:
        socket.default_value = 7.0 if night else 0.0
