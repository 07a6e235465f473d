"""A ROS 2 node in Python that runs a model on each image of a topic. Argument: the model.

It has the shape of an `rclpy` node and runs without ROS: `Node` and `spin` below stand in for rclpy's. Nothing of it was run
with rclpy. Comments name what takes their place in a node.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any, Callable

import numpy

import epwatch


class Node:
    """rclpy.node.Node, as far as it is used here."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.callback: Callable[[Any], None] | None = None

    def create_subscription(self, callback: Callable[[Any], None]) -> None:
        self.callback = callback


def spin(node: Node, stopped: threading.Event) -> None:
    """rclpy.spin, with an empty image every 20 ms: it returns once the process is asked to end."""
    image = numpy.zeros((1, 3, 32, 32), numpy.float32)
    while not stopped.wait(0.02):
        if node.callback is not None:
            node.callback(image)


class Segmenter(Node):
    """Made once, after `epwatch.start`: the session belongs to the node."""

    def __init__(self, model: str) -> None:
        super().__init__("segmenter")
        self.n_images = 0
        self.session = epwatch.InferenceSession(
            model, providers=["CPUExecutionProvider"], model="segmenter", version="3"
        )
        # In ROS: self.create_subscription(Image, "image", self.on_image, 1)
        self.create_subscription(self.on_image)

    def on_image(self, image: Any) -> None:
        # In ROS: an array of the message's data first.
        (mask, *_) = self.session.run(None, {"x": image})
        self.n_images += 1
        # In ROS: self.publisher.publish(...)
        print(f"image {self.n_images}: {mask.shape}", flush=True)


def main() -> None:
    # In ROS: rclpy.init(), which handles both signals.
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    # App, endpoint, key, folder and consent come from EPWATCH_APP and the other variables, which a launch file sets.
    epwatch.start(thermal_zones=True)
    node = Segmenter(sys.argv[1])
    try:
        spin(node, stopped)
    finally:
        # In ROS `spin` may end by an exception. Runs are sealed first; an upload that hangs is broken off in time for
        # `ros2 launch`, which sends the next signal after five seconds.
        epwatch.stop(timeout=3.0)


if __name__ == "__main__":
    main()
