// streams
