"""Files of models: a folder of safetensors and JSON with checksums, and the kernels and settings that go into it."""
