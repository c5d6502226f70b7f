"""The search over equivalent graphs, with the planner's cost.

``search`` visits regions, ``attribution`` says which laws a gain needs, and where two expressions
differ; ``dnnfusion_search`` is the greedy search of the DNNFusion paper, with its rules. ``judge``
prices what a pass would do at one place, in its ``surroundings``; ``whole`` keeps a step only where
the plan of the module gets no slower.
"""
