(value_definition (let_binding pattern: (value_name) @name)) @function
(type_definition (type_binding name: (type_constructor) @name)) @type
(module_definition (module_binding (module_name) @name)) @module
(comment) @attach
