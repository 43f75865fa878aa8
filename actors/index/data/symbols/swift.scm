(class_declaration name: (_) @name) @class
(protocol_declaration name: (_) @name) @interface
(function_declaration name: (simple_identifier) @name) @function
(protocol_function_declaration name: (simple_identifier) @name) @function
(init_declaration "init" @name) @method
(typealias_declaration name: (type_identifier) @name) @type
(inheritance_specifier inherits_from: (user_type (type_identifier) @super))
(call_expression [(simple_identifier) @call
                  (navigation_expression suffix: (navigation_suffix suffix: (simple_identifier) @call))])
(import_declaration (identifier) @import)
[(comment) (multiline_comment)] @attach
