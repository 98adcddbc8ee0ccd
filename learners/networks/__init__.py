"""Networks over flat parameters, with their gradients and Hessian-vector products.

In the passes a name `by_x` is the gradient of the loss with respect to x, and `x_dot` or ẋ is the tangent of x: its
derivative along the direction v of a Hessian-vector product H v. Axes besides those of `learners`: K filters, T tiles
of 2×2 outputs, c components of a Winograd convolution, p places in a tile.
"""
