(class_declaration name: (_) @name) @class
(class_heritage (identifier) @super)
(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(method_definition name: [(property_identifier) (private_property_identifier)] @name) @method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @function
(program [(lexical_declaration (variable_declarator name: (identifier) @name)) @constant
          (export_statement (lexical_declaration (variable_declarator name: (identifier) @name)) @constant)])
(assignment_expression left: (member_expression property: (property_identifier) @name)
                       right: [(arrow_function) (function_expression)]) @function
(field_definition property: (_) @name value: (arrow_function)) @method
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @method
(call_expression function: [(identifier) @call (member_expression property: (property_identifier) @call)])
(new_expression constructor: (identifier) @call)
(import_statement source: (string (string_fragment) @import))
[(comment) (decorator)] @attach
