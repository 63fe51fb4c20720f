// written in a moment
