"""Half types on CPUs: whole models beside this package's float32 and OpenVINO's both precisions."""
