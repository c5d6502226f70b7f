"""The search over equivalent graphs, with the planner's cost.

``search`` visits regions, ``attribution`` says which laws a gain needs, ``difference`` compares
plans; ``dnnfusion_search`` and ``dnnfusion_rules`` are the greedy search and the rules of the
DNNFusion paper.
"""
