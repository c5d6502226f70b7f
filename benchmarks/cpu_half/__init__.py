"""Half types on CPUs: whole models against our float32 and both of OpenVINO's precisions."""
