"""Classify tickets with a small language model on onnxruntime; see `Classifier`."""
