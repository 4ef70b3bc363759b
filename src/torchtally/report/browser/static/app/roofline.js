// roofline
