(section (title) @name) @heading
