// modules
