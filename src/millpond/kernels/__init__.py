"""Fast arithmetic on arrays: each kernel with a plain reference beside it. Pure: arrays in, arrays out."""
