"""Networks over flat parameters, with their gradients and Hessian-vector products."""
