"""The commands of `diptych`, a module each, imported when used. A command is `main(arguments) -> exit code`."""
