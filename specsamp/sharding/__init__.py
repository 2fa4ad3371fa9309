"""Which axis lies where: meshes, rules, runs of several processes."""
