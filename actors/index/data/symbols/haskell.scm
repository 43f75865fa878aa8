(function name: (variable) @name) @function
(data_type name: (name) @name) @type
(newtype name: (name) @name) @type
(class name: (name) @name) @interface
(comment) @attach
