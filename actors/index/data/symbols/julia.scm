(function_definition (signature (call_expression (identifier) @name))) @function
(struct_definition (type_head (identifier) @name)) @struct
(module_definition name: (identifier) @name) @module
(call_expression (identifier) @call)
[(line_comment) (block_comment)] @attach
