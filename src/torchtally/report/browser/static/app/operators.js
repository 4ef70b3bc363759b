// operators
