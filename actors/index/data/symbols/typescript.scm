(class_declaration name: (_) @name) @class
(abstract_class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(type_alias_declaration name: (_) @name) @type
(internal_module name: (_) @name) @module
(module name: (_) @name) @module
(extends_clause value: (identifier) @super)
(implements_clause [(type_identifier) @super (generic_type name: (type_identifier) @super)])
(extends_type_clause [(type_identifier) @super (generic_type name: (type_identifier) @super)])
(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(function_signature name: (identifier) @name) @function
(method_definition name: [(property_identifier) (private_property_identifier)] @name) @method
(abstract_method_signature name: (_) @name) @method
(method_signature name: (_) @name) @method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @function
(program [(lexical_declaration (variable_declarator name: (identifier) @name)) @constant
          (export_statement (lexical_declaration (variable_declarator name: (identifier) @name)) @constant)])
(assignment_expression left: (member_expression property: (property_identifier) @name)
                       right: [(arrow_function) (function_expression)]) @function
(public_field_definition name: (_) @name value: (arrow_function)) @method
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @method
(call_expression function: [(identifier) @call (member_expression property: (property_identifier) @call)])
(new_expression constructor: (identifier) @call)
(import_statement source: (string (string_fragment) @import))
[(comment) (decorator)] @attach
