"""Programs of JAX as ONNX graphs: `graph` has the builder, the other files translate the primitives of JAX."""
