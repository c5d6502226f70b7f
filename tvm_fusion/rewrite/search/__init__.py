"""The search over equivalent graphs, with the planner's cost.

``search`` visits regions, ``attribution`` says which laws a gain needs, and where two expressions
differ; ``dnnfusion_search`` and ``dnnfusion_rules`` are the greedy search and the rules of the
DNNFusion paper. ``judge`` prices what a pass would do at one place, in its ``surroundings``;
``whole`` keeps a step only where the plan of the module gets no slower.
"""
