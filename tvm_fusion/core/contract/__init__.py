"""How the planner and the kernels know each other.

* ``template``: claim, propose, emit, and what they return; ``templates``: those that are asked.
* ``forms``: the forms of a kernel that a template weighed, for ``explain``.
* ``kernel_work``: what kernels do besides traffic and arithmetic; ``kernel_info``: what a manifest
  says of them.
* ``tuned``: configurations that a tuner has measured.
"""
