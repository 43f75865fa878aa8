(function_definition declarator: (_ [(identifier) (field_identifier) (destructor_name) (operator_name)] @name)
  ) @function
(function_definition declarator: (function_declarator declarator: (qualified_identifier) @name)) @function
(function_definition declarator: (_ declarator: (function_declarator declarator:
  [(identifier) (field_identifier) (qualified_identifier) (operator_name)] @name))) @function
(function_definition declarator: (_ (function_declarator declarator:
  [(identifier) (field_identifier) (qualified_identifier) (operator_name)] @name))) @function
(class_specifier name: (_) @name body: (_)) @class
(struct_specifier name: (_) @name body: (_)) @struct
(union_specifier name: (_) @name body: (_)) @struct
(enum_specifier name: (_) @name body: (_)) @enum
(namespace_definition name: (_) @name) @module
(type_definition declarator: (type_identifier) @name) @type
(alias_declaration name: (type_identifier) @name) @type
(concept_definition name: (identifier) @name) @type
(preproc_function_def name: (identifier) @name) @macro
(preproc_def name: (identifier) @name) @constant
(base_class_clause [(type_identifier) @super (qualified_identifier name: (type_identifier) @super)
                    (template_type name: (type_identifier) @super)])
(call_expression function: [(identifier) @call (field_expression field: (field_identifier) @call)
                            (qualified_identifier name: (identifier) @call)])
(preproc_include path: (_) @import)
(comment) @attach
