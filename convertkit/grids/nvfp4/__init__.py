"""NVFP4: E2M1 codes, one E4M3 block scale per 16 of them, one FP32 global scale."""
