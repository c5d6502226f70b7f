"""TVM's own Relax test suites, with this package's pipelines in the place of stock ones."""
