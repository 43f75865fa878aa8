(function_declaration name: (identifier) @name) @function
(method_declaration
  receiver: (parameter_list (parameter_declaration
    type: [(type_identifier) @receiver
           (pointer_type [(type_identifier) @receiver (generic_type type: (type_identifier) @receiver)])
           (generic_type type: (type_identifier) @receiver)]))
  name: (field_identifier) @name) @method
(type_declaration (type_spec name: (type_identifier) @name type: (struct_type))) @struct
(type_declaration (type_spec name: (type_identifier) @name type: (interface_type))) @interface
(type_declaration (type_spec name: (type_identifier) @name
  type: [(function_type) (map_type) (slice_type) (type_identifier) (qualified_type) (pointer_type)])) @type
(source_file (const_declaration (const_spec name: (identifier) @name)) @constant)
(source_file (var_declaration (var_spec name: (identifier) @name)) @constant)
(call_expression function: [(identifier) @call (selector_expression field: (field_identifier) @call)])
(import_spec path: (interpreted_string_literal) @import)
(comment) @attach
