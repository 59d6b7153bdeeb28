"""A small real training: a linear model fitted by gradient descent, in plain Python.

The demo lets it fail in several ways. Nothing in it knows of GPUAlert or Airflow: it is a user's own script.
"""

import argparse
import json
import math
import random
import time


def make_data(count, seed=7):
    """Points of the plane, labelled by the side of a line on which they lie, with some noise."""
    source = random.Random(seed)
    points = []
    for _ in range(count):
        x, y = source.gauss(0, 1), source.gauss(0, 1)
        points.append((x, y, 1.0 if 2 * x - y + source.gauss(0, 0.3) > 0 else 0.0))
    return points


def one_epoch(weights, points, rate):
    """One pass of gradient descent on the squared error of a linear model; returns the mean loss before the step."""
    gradient = [0.0, 0.0, 0.0]
    loss = 0.0
    for x, y, label in points:
        error = weights[0] * x + weights[1] * y + weights[2] - (2 * label - 1)
        loss += error * error
        for index, value in enumerate((x, y, 1.0)):
            gradient[index] += 2 * error * value
    for index in range(3):
        weights[index] -= rate * gradient[index] / len(points)
    return loss / len(points)


def accuracy(weights, points):
    right = sum((weights[0] * x + weights[1] * y + weights[2] > 0) == (label > 0.5) for x, y, label in points)
    return right / len(points)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds per epoch, as if it were work")
    parser.add_argument("--config", help="JSON file with the model's settings")
    parser.add_argument("--cache-tokens", type=int, default=0, help="tokens kept in memory")
    parser.add_argument("--attention", choices=["plain", "flash"], default="plain")
    parser.add_argument("--kernel", choices=["python", "native"], default="python")
    parser.add_argument("--out", help="file for the metrics")
    options = parser.parse_args()

    if options.attention == "flash":
        import flash_attn_3  # noqa: F401
    if options.config:
        with open(options.config) as file:
            config = json.load(file)
        print(f"model: {config['model']['hidden_size']} units", flush=True)
    if options.cache_tokens:
        print(f"reserving room for {options.cache_tokens:,} tokens", flush=True)
        cache = bytearray(options.cache_tokens * 1024)
        print(f"cache: {len(cache)} bytes", flush=True)
    if options.kernel == "native":
        import ctypes

        print("loading the native kernel", flush=True)
        ctypes.string_at(0)  # a pointer that a broken extension would have got wrong

    points = make_data(400)
    weights = [0.0, 0.0, 0.0]
    lost = 0
    for epoch in range(1, options.epochs + 1):
        loss = one_epoch(weights, points, options.lr)
        print(
            f"epoch {epoch}/{options.epochs} - loss: {loss:.4f} - accuracy: {accuracy(weights, points):.3f}", flush=True
        )
        lost = lost + 1 if math.isnan(loss) else 0
        if lost == 3:
            raise FloatingPointError(f"loss is nan for {lost} epochs in a row, giving up in epoch {epoch}")
        time.sleep(options.pause)

    if options.out:
        with open(options.out, "w") as file:
            json.dump({"loss": loss, "accuracy": accuracy(weights, points)}, file)
    print("training finished", flush=True)


if __name__ == "__main__":
    main()
