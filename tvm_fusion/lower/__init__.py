"""TIR passes around TVM's own lowering: each mends what TVM 0.27 lowers wrongly."""
