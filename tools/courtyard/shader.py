"""Building Cycles node graphs from Python: each call adds nodes and returns a socket to go on with."""

from __future__ import annotations

import math
from typing import Any

import bpy

Color = tuple[float, float, float]
Socket = Any


class Shader:
    """A material under construction: each method adds nodes and returns the output socket."""

    def __init__(self, name: str) -> None:
        self.material = bpy.data.materials.new(name)
        self.material.use_nodes = True
        self.tree = self.material.node_tree
        self.tree.nodes.clear()
        self._geometry = self.add("ShaderNodeNewGeometry")

    def add(self, kind: str, inputs: dict[Any, Any] | None = None, **properties: Any) -> Any:
        """A node with its properties set and its inputs linked (sockets) or fixed (values)."""
        node = self.tree.nodes.new(kind)
        for key, value in properties.items():
            setattr(node, key, value)
        for key, value in (inputs or {}).items():
            if isinstance(value, bpy.types.NodeSocket):
                self.tree.links.new(value, node.inputs[key])
            else:
                socket = node.inputs[key]
                wants_alpha = socket.type == "RGBA" and len(value) == 3
                socket.default_value = (*value, 1.0) if wants_alpha else value
        return node

    def math(self, operation: str, a: Any, b: Any = 0.0, clamp: bool = False) -> Socket:
        return self.add("ShaderNodeMath", {0: a, 1: b}, operation=operation, use_clamp=clamp).outputs[0]

    def position(self) -> Socket:
        return self._geometry.outputs["Position"]

    def island(self) -> Socket:
        return self._geometry.outputs["Random Per Island"]

    def per_object(self) -> Socket:
        return self.add("ShaderNodeObjectInfo").outputs["Random"]

    def local(self, scale: Color = (1, 1, 1)) -> Socket:
        coordinates = self.add("ShaderNodeTexCoord").outputs["Object"]
        return self.add("ShaderNodeVectorMath", {0: coordinates, 1: scale}, operation="MULTIPLY").outputs[0]

    def scaled(self, vector: Socket, scale: Color, offset: Color = (0, 0, 0)) -> Socket:
        node = self.add("ShaderNodeVectorMath", {0: vector, 1: scale, 2: offset}, operation="MULTIPLY_ADD")
        return node.outputs[0]

    def wall_coordinates(self, seed: float, wobble: float = 0.0) -> Socket:
        """(metres along the wall, height, 0) on any vertical face."""
        p = self.add("ShaderNodeSeparateXYZ", {0: self.position()})
        n = self.add("ShaderNodeSeparateXYZ", {0: self._geometry.outputs["True Normal"]})
        faces_x = self.math("GREATER_THAN", self.math("ABSOLUTE", n.outputs[0]), 0.7)
        along = self.add("ShaderNodeMix", {0: faces_x, 2: p.outputs[0], 3: p.outputs[1]}).outputs[0]
        shifted = self.math("ADD", along, seed)
        vector = self.add("ShaderNodeCombineXYZ", {0: shifted, 1: p.outputs[2]}).outputs[0]
        if not wobble:
            return vector
        noise = self.add("ShaderNodeTexNoise", {"Vector": vector, "Scale": 2.5, "Detail": 2.0}).outputs[
            "Color"
        ]
        centred = self.scaled(noise, (wobble, wobble, 0), (-wobble / 2, -wobble / 2, 0))
        return self.add("ShaderNodeVectorMath", {0: vector, 1: centred}, operation="ADD").outputs[0]

    def noise(self, vector: Socket, scale: float, detail: float = 5.0, rough: float = 0.6) -> Socket:
        """Fractal noise; octaves finer than a pixel (about 1 cm on the walls) would only cost time."""
        detail = max(1.0, min(detail, math.log2(1 / (0.007 * scale))))
        inputs = {"Vector": vector, "Scale": scale, "Detail": detail, "Roughness": rough}
        return self.add("ShaderNodeTexNoise", inputs).outputs[0]

    def ramp(
        self, value: Socket, low: float, high: float, to_low: float = 0.0, to_high: float = 1.0
    ) -> Socket:
        inputs = {"Value": value, 1: low, 2: high, 3: to_low, 4: to_high}
        return self.add("ShaderNodeMapRange", inputs, clamp=True).outputs[0]

    def mix(self, factor: Any, a: Any, b: Any, blend: str = "MIX") -> Socket:
        return self.add("ShaderNodeMixRGB", {0: factor, 1: a, 2: b}, blend_type=blend).outputs[0]

    def palette(self, value: Socket, colors: list[Color], constant: bool = False) -> Socket:
        node = self.add("ShaderNodeValToRGB", {0: value})
        stops = node.color_ramp.elements
        while len(stops) < len(colors):
            stops.new(0.5)
        for i, color in enumerate(colors):
            stops[i].position = i / len(colors) if constant else i / max(1, len(colors) - 1)
            stops[i].color = (*color, 1.0)
        node.color_ramp.interpolation = "CONSTANT" if constant else "LINEAR"
        return node.outputs[0]

    def finish(
        self,
        color: Any,
        roughness: Any = 0.85,
        height: Any = None,
        bump: float = 0.4,
        average: Color | None = None,
        **more: Any,
    ) -> bpy.types.Material:
        """Close the graph with a principled surface; `height` in metres drives the bump.

        With `average`, light that bounces sees only that colour: Cycles then skips the textures.
        """
        inputs: dict[Any, Any] = {"Base Color": color, "Roughness": roughness, **more}
        if height is not None:
            node = self.add("ShaderNodeBump", {"Height": height, "Strength": bump, "Distance": 1.0})
            inputs["Normal"] = node.outputs[0]
        surface = self.add("ShaderNodeBsdfPrincipled", inputs)
        result = surface.outputs[0]
        if average is not None:
            seen = self.add("ShaderNodeLightPath").outputs["Is Camera Ray"]
            dull = self.add("ShaderNodeBsdfDiffuse", {"Color": average}).outputs[0]
            result = self.add("ShaderNodeMixShader", {0: seen, 1: dull, 2: result}).outputs[0]
        self.add("ShaderNodeOutputMaterial", {0: result})
        return self.material
