"""What goes wrong in the tools of the chaos suite. Child processes import these modules, so they load no runtime."""
