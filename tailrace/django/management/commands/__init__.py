"""The commands of the app, each in a file of its name, where Django looks for them."""
