"""The parts of ``benchmarks.on_gpu``: each runs in a process of its own and can be stopped at any moment."""
