"""Learning a schedule with the model's weights frozen: by gradient, by evolution, or by CMA-ES."""
