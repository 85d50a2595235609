"""Draft models in ONNX Runtime (the extra ``onnx``)."""
