(class_definition name: (identifier) @name) @class
(object_definition name: (identifier) @name) @class
(trait_definition name: (identifier) @name) @trait
(enum_definition name: (identifier) @name) @enum
(function_definition name: (identifier) @name) @function
(function_declaration name: (identifier) @name) @function
(type_definition name: (type_identifier) @name) @type
(extends_clause type: (type_identifier) @super)
(call_expression function: [(identifier) @call (field_expression field: (identifier) @call)])
(import_declaration) @import
[(comment) (block_comment)] @attach
