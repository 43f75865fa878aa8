(class_declaration name: (identifier) @name) @class
(object_declaration name: (identifier) @name) @class
(function_declaration name: (identifier) @name) @function
(type_alias type: (identifier) @name) @type
(delegation_specifier [(user_type (identifier) @super)
                       (constructor_invocation (user_type (identifier) @super))])
(call_expression [(identifier) @call (navigation_expression (identifier) @call .)])
(import (qualified_identifier) @import)
[(line_comment) (block_comment)] @attach
