"""What users decide: DeepSpeed's, FSDP's and Transformer Engine's settings, the mesh."""
