(contract_declaration name: (identifier) @name) @class
(interface_declaration name: (identifier) @name) @interface
(library_declaration name: (identifier) @name) @class
(struct_declaration name: (identifier) @name) @struct
(enum_declaration name: (identifier) @name) @enum
(function_definition name: (identifier) @name) @function
(modifier_definition name: (identifier) @name) @function
(comment) @attach
