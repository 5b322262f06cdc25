"""The terms in which every engine is described: layers as asked, differences, commands, what is served."""
