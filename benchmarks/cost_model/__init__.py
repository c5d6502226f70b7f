"""The planner's model of cost, fitted to measured groups of the zoo and compared with them."""
