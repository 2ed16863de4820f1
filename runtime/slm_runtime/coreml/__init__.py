"""The CoreML profile: graphs of fixed shapes, tried out in a child process before they are trusted."""
