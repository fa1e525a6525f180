"""What the numbers of a tensor are: dense types and quantized grids."""
