"""Every group of the zoo's plans alone, against its members one by one."""
