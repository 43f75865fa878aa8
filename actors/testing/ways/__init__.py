"""What goes wrong in the chaos suite's tools. Child processes import these modules: they load nothing of the runtime."""
