# For the type checker alone: `ludus.compat` is a part of the package `ludus`, which another folder holds.
