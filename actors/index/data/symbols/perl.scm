(function_definition name: (identifier) @name) @function
(comments) @attach
